"""What each of DAPO's changes is worth, from GRPO as in its paper to DAPO, and how large a group should be."""
