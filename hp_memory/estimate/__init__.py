"""The dry run on the meta device: what each stage of a full-size model needs, when, and which plan fits a budget."""
