"""The lecture: one page from the policy gradient to DAPO, whose numbers are computed by this package."""
