"""Work that changes something for as long as it lasts, and puts it back whatever happens."""
