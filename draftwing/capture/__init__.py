"""Run the target over prompts and write features: prompts, regenerate, record."""
