"""Generated protobuf messages: `make proto` writes them, `make proto-check` compares."""
