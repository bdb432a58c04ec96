"""Recording what is computed on fakes as a functional program: steps, values, views and writes."""
