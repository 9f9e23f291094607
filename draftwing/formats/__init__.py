"""What reaches a disk: tensor files, features, drafters, contracts, records. All of it is versioned."""
