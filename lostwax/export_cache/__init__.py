"""Programs kept in a folder, so that an export which was made before is read from there."""
