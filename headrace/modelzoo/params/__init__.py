"""Params files of the Cerebras Model Zoo, of all generations, as our own params."""

from headrace.modelzoo.params.inputs import InputFacts as InputFacts
from headrace.modelzoo.params.model import FineTuning as FineTuning
from headrace.modelzoo.params.show import show as show
from headrace.modelzoo.params.translate import RunFacts as RunFacts
from headrace.modelzoo.params.translate import Translation as Translation
from headrace.modelzoo.params.translate import translate as translate
