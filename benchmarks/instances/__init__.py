"""Where a group pays: tasks whose returns depend on their start, or on chance that no action changes."""
