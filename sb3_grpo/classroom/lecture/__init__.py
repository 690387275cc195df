"""The lecture: a single page from the policy gradient to DAPO, with numbers computed by this package."""
