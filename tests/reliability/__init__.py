"""Nothing lost, nothing let in: what docs/explanation/reliability.md promises.

`FEDFADE_EXAMPLES=20` multiplies the inputs of the property tests here.
"""

import os

EXAMPLES = int(os.environ.get("FEDFADE_EXAMPLES", "1"))
