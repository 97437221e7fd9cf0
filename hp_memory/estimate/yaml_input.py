"""stub"""


def applied(cfg):
    return cfg
