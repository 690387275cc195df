"""SmolLM2 learns from a verifier: speed and memory."""
