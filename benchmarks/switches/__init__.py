"""What each of DAPO's changes is worth, from GRPO (paper) to DAPO, and how large a group should be."""
