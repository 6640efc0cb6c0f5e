"""The arithmetic of an update, pure or in place on the slabs it is given: rules, formats, schedule, clipping, loss scale."""

from headrace.optim.adafactor import Adafactor as Adafactor
from headrace.optim.adamw import BLOCK_ELEMENTS as BLOCK_ELEMENTS
from headrace.optim.adamw import AdamW as AdamW
from headrace.optim.adamw_8bit import QUANTIZATION_BLOCK as QUANTIZATION_BLOCK
from headrace.optim.adamw_8bit import AdamW8bit as AdamW8bit
from headrace.optim.adamw_split import SplitAdamW as SplitAdamW
from headrace.optim.clip import clip_coefficient as clip_coefficient
from headrace.optim.clip import global_norm as global_norm
from headrace.optim.clip import join_norms as join_norms
from headrace.optim.clip import tensor_norms as tensor_norms
from headrace.optim.clip_value import ClipByValue as ClipByValue
from headrace.optim.describe import describe as describe
from headrace.optim.loss_scale import LossScale as LossScale
from headrace.optim.rule import Rule as Rule
from headrace.optim.schedules import learning_rate as learning_rate
from headrace.optim.sgd import SGD as SGD
from headrace.optim.split import join as join
from headrace.optim.split import split as split
from headrace.optim.stochastic_rounding import parameter_key as parameter_key
from headrace.optim.stochastic_rounding import round_stochastically as round_stochastically
