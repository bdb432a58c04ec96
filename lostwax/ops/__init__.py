"""What is known of each operator, one family a file. Importing this folder fills the registry."""

from lostwax.ops import activations as activations
from lostwax.ops import attention as attention
from lostwax.ops import conv as conv
from lostwax.ops import decompositions as decompositions
from lostwax.ops import embeddings as embeddings
from lostwax.ops import factory as factory
from lostwax.ops import fft as fft
from lostwax.ops import indexing as indexing
from lostwax.ops import linalg as linalg
from lostwax.ops import loss as loss
from lostwax.ops import matmul as matmul
from lostwax.ops import norm as norm
from lostwax.ops import pointwise as pointwise
from lostwax.ops import pool as pool
from lostwax.ops import quantize as quantize
from lostwax.ops import random as random
from lostwax.ops import rearrange as rearrange
from lostwax.ops import reduce as reduce
from lostwax.ops import resample as resample
from lostwax.ops import rnn as rnn
from lostwax.ops import scalars as scalars
from lostwax.ops import sorting as sorting
from lostwax.ops import view_forms as view_forms
from lostwax.ops import view_inverses as view_inverses
from lostwax.ops import view_parts as view_parts
from lostwax.ops import views as views
