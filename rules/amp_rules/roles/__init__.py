"""What a value is for: model, optimizer, scaler, loader, training step."""
