"""That the model runner computes the same bits however it is scheduled."""
