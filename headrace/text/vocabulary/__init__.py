"""Vocabularies: trained on a sample of the text or loaded, saved as a folder that `AutoTokenizer` opens, used through
`Vocabulary`, which turns sentences into token ids and back."""

from headrace.text.vocabulary.extend import extend_vocabulary as extend_vocabulary
from headrace.text.vocabulary.load import load_vocabulary as load_vocabulary
from headrace.text.vocabulary.train import TrainingReport as TrainingReport
from headrace.text.vocabulary.train import train_vocabulary as train_vocabulary
from headrace.text.vocabulary.vocabulary import Extension as Extension
from headrace.text.vocabulary.vocabulary import Vocabulary as Vocabulary
from headrace.text.vocabulary.vocabulary import open_vocabulary as open_vocabulary
