"""The models that can be traced: MindFormers' and the reference model."""
