"""The tracer: every operator that the module runs, evaluated on fakes and recorded as steps."""
