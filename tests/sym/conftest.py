"""hypothesis without a clock: the machine that runs the tests may be busy; and the same examples in
every run."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "house",
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
