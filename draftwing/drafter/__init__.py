"""The EAGLE-3 head: one model for training and for decoding, its config, its vocabulary map."""
