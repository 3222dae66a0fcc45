"""Training runs whose results ship with the package."""
