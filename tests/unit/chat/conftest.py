import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

# How long an example takes says how busy the machine is, nothing else.
settings.register_profile("chat", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("chat")
