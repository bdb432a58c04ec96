"""What is known of each operator, one family a file. Importing this folder fills the registry."""

from lostwax.ops import decompositions as decompositions
from lostwax.ops.math import fft as fft
from lostwax.ops.math import linalg as linalg
from lostwax.ops.math import matmul as matmul
from lostwax.ops.math import pointwise as pointwise
from lostwax.ops.math import reduce as reduce
from lostwax.ops.nn import activations as activations
from lostwax.ops.nn import attention as attention
from lostwax.ops.nn import conv as conv
from lostwax.ops.nn import embeddings as embeddings
from lostwax.ops.nn import loss as loss
from lostwax.ops.nn import norm as norm
from lostwax.ops.nn import pool as pool
from lostwax.ops.nn import quantize as quantize
from lostwax.ops.nn import resample as resample
from lostwax.ops.nn import rnn as rnn
from lostwax.ops.tensors import factory as factory
from lostwax.ops.tensors import indexing as indexing
from lostwax.ops.tensors import random as random
from lostwax.ops.tensors import rearrange as rearrange
from lostwax.ops.tensors import scalars as scalars
from lostwax.ops.tensors import sorting as sorting
from lostwax.ops.tensors import view_forms as view_forms
from lostwax.ops.tensors import view_inverses as view_inverses
from lostwax.ops.tensors import view_parts as view_parts
from lostwax.ops.tensors import views as views
