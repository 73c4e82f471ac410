"""What a model is computed with. One small interface, `interface.Ops`, and its backends."""
