"""Every name of MindSpore that isn't public and that this package stands on: imported here once, and probed."""
