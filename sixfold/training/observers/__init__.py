"""Those who hear of a run: its log, its display, TensorBoard, and what a user hands to `train(observers=…)`."""
