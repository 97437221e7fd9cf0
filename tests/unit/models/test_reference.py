"""The reference model: what it computes, its regions, and how it is cut into parts."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from hp_memory.errors import ConfigError
from hp_memory.kernels.groups import Group
from hp_memory.models.fingerprint import fingerprint


@pytest.fixture
def loss_and_grads(mindspore):
    def run(model, tokens, labels):
        from hp_memory.models.reference import next_token_loss

        parameters = model.trainable_params()
        function = mindspore.value_and_grad(lambda x, y: next_token_loss(model(x), y), None, parameters)
        loss, grads = function(tokens, labels)
        return float(loss.asnumpy()), {p.name: g.asnumpy() for p, g in zip(parameters, grads, strict=True)}

    return run


def test_logits_and_a_first_loss_near_that_of_guessing(build, settings, tokens, loss_and_grads):
    model = build(settings)
    assert model(tokens[0]).shape == (2 * settings.seq_length, settings.vocab_size)
    loss, grads = loss_and_grads(model, *tokens)
    assert loss == pytest.approx(np.log(settings.vocab_size), rel=0.02)
    assert all(np.isfinite(grad).all() for grad in grads.values())
    assert all(grad.any() for grad in grads.values()), [name for name, grad in grads.items() if not grad.any()]


@pytest.mark.parametrize("change", [{"scoring": "sigmoid"}, {"routed_scaling_factor": 2.5}, {"shared_experts": 0}])
def test_variants_run_forward_and_backward(build, settings, tokens, loss_and_grads, change):
    loss, _ = loss_and_grads(build(replace(settings, **change)), *tokens)
    assert np.isfinite(loss)


@pytest.mark.parametrize(
    "name", ["layers.1.moe.up_weight", "layers.1.moe.router.weight", "layers.0.attention.qkv_weight"]
)
def test_gradients_agree_with_differences(mindspore, build, settings, tokens, loss_and_grads, name):
    # Without the balancing loss, which is in the gradient only; larger weights, so that a difference can be seen.
    model = build(replace(settings, aux_loss_coeff=0.0, init_std=0.3))
    _, grads = loss_and_grads(model, *tokens)
    parameter = next(p for p in model.trainable_params() if p.name == name)
    place = np.unravel_index(np.abs(grads[name]).argmax(), grads[name].shape)
    start, losses = parameter.asnumpy().copy(), []
    for sign in (1, -1):
        moved = start.copy()
        moved[place] += sign * 1e-2
        parameter.set_data(mindspore.Tensor(moved))
        losses.append(loss_and_grads(model, *tokens)[0])
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(grads[name][place], rel=0.02)


def test_the_balancing_loss_reaches_the_router_only_through_its_scores(build, settings, tokens, loss_and_grads):
    name = "layers.1.moe.router.weight"
    without = loss_and_grads(build(replace(settings, aux_loss_coeff=0.0)), *tokens)
    small = loss_and_grads(build(replace(settings, aux_loss_coeff=0.1)), *tokens)
    large = loss_and_grads(build(replace(settings, aux_loss_coeff=0.2)), *tokens)
    assert without[0] == small[0] == large[0]
    np.testing.assert_allclose(large[1][name] - without[1][name], 2 * (small[1][name] - without[1][name]), atol=1e-6)


def test_equal_seeds_make_equal_models_and_others_differ(build, settings):
    def digest(model):
        return hashlib.sha256(b"".join(p.asnumpy().tobytes() for p in model.trainable_params())).hexdigest()

    assert digest(build(settings, seed=1)) == digest(build(settings, seed=1)) != digest(build(settings, seed=2))
    weights = [p.asnumpy().ravel()[:4].tolist() for p in build(settings).trainable_params() if p.ndim > 1]
    assert len({tuple(w) for w in weights}) == len(weights), "two matrices were drawn alike"


def test_parts_hold_the_whole_models_parameters_and_compute_what_it_does(build, settings, tokens):
    whole = build(settings, seed=3)
    first = build(settings, seed=3, layers=range(1), head=False)
    last = build(settings, seed=3, layers=range(1, 2), embedding=False)
    names = {p.name: p.asnumpy() for p in whole.trainable_params()}
    parts = {p.name: p.asnumpy() for part in (first, last) for p in part.trainable_params()}
    assert names.keys() == parts.keys()
    assert all(np.array_equal(names[name], parts[name]) for name in names)
    np.testing.assert_array_equal(last(first(tokens[0])).asnumpy(), whole(tokens[0]).asnumpy())


def test_experts_spread_over_ranks_are_shares_of_one_set(mindspore, settings):
    from hp_memory.models.reference import build
    from hp_memory.models.settings import ParallelSettings

    def up_weight(group):
        model = build(settings, ParallelSettings(data=group.size, expert=group.size), group=group)
        return next(p.asnumpy() for p in model.trainable_params() if p.name.endswith("moe.up_weight"))

    shares = [up_weight(Group((0, 1), index, "unused")) for index in range(2)]
    np.testing.assert_array_equal(np.concatenate(shares), up_weight(Group()))


def test_a_group_of_another_size_and_a_bad_model_are_refused(build, settings):
    with pytest.raises(ValueError, match="shared by 1 ranks, the group has 2"):
        build(settings, group=Group((0, 1), 0, "g"))
    with pytest.raises(ConfigError, match=r"model\.top_k"):
        build(replace(settings, top_k=9))


def test_the_region_map_tiles_each_block_with_the_fingerprints_regions(build, settings):
    from hp_memory.models.reference import region_map

    model = build(settings)
    mark = fingerprint(settings)
    for block in region_map(model):
        assert block.container[block.key] is model.layers[block.key]
        assert block.kind == mark.kinds[block.layer]
        single = [site.regions[0] for site in block.sites if len(site.regions) == 1]
        assert sorted(single) == sorted(mark.regions[block.kind])
        assert all(callable(getattr(site.owner, site.attr)) for site in block.sites)


def test_the_region_map_of_a_part_names_global_layers(build, settings):
    from hp_memory.models.reference import region_map

    (block,) = region_map(build(settings, layers=range(1, 2), embedding=False))
    assert (block.layer, block.key, block.path) == (1, 0, "layers.0")


def test_every_region_is_called_at_each_forward_through_its_owner(build, settings, tokens):
    from hp_memory.models.reference import region_map

    model, calls = build(settings), []
    for block in region_map(model):
        for site in block.sites:
            target = getattr(site.owner, site.attr)
            if hasattr(target, "trainable_params"):
                continue

            def counted(*args, _target=target, _site=site):
                calls.append(_site.path)
                return _target(*args)

            object.__setattr__(site.owner, site.attr, counted)
    model(tokens[0])
    first = list(calls)
    model(tokens[0])
    assert len(first) == len(set(first)) == 27
    assert calls == first * 2


def test_regions_tile_each_block_but_for_the_additions_of_branches(build, settings, tokens):
    from hp_memory.install import install
    from hp_memory.layout import LayoutSettings, build_plan
    from hp_memory.models.reference import region_map
    from tests.support.outside_regions import outside_regions

    model = build(settings)
    blocks = region_map(model)
    install(model, build_plan(LayoutSettings("none", "save"), fingerprint(settings)), blocks)
    # Attention's, the feed forward part's, and the shared experts'.
    found = outside_regions(blocks, lambda: model(tokens[0]))
    assert found == {"layers.0": {"AddExt": 2}, "layers.1": {"AddExt": 3}}


def test_the_routers_load_counts_tokens_and_starts_again_when_taken(build, settings, tokens):
    router = build(settings).layers[1].moe.router
    x = np.random.default_rng(0).standard_normal((10, settings.hidden_size)).astype(np.float32)
    import mindspore as ms

    router(ms.Tensor(x))
    router(ms.Tensor(x))
    assert router.take_load().sum() == 2 * 10 * settings.top_k
    assert not router.take_load().any()


def test_ascend_modules_offer_the_same_names():
    from hp_memory.kernels.ascend import collectives as ascend_collectives
    from hp_memory.kernels.ascend import kernels as ascend
    from hp_memory.kernels.cpu import collectives, kernels

    assert set(kernels.__all__) <= set(vars(ascend))
    for name in ("all_to_all_single", "all_gather", "reduce_scatter", "all_reduce", "gather_list", "reduce_sum"):
        assert callable(getattr(ascend_collectives, name))
        assert callable(getattr(collectives, name))
