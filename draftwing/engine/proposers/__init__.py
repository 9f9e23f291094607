"""What may come next, from whoever has an idea: one small interface (`base`), and those who implement it."""
