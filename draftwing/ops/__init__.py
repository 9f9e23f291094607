"""The arithmetic: norm, rope, attention, sampling. Each fast path stands beside its plain reference."""
