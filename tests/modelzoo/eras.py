"""Short params files of every generation, made up for the tests, with the keys and figures of real ones."""

TF_BERT = """
train_input:
    data_processor: BertTfRecordsProcessor
    data_dir: './records/train'
    vocab_file: '../../vocab/google_research_uncased_L-12_H-768_A-12.txt'
    max_sequence_length: 128
    max_predictions_per_seq: 20
    batch_size: 256
    buckets: [39, 56, 72]
eval_input:
    data_processor: BertTfRecordsProcessor
    data_dir: './records/val'
    vocab_file: '../../vocab/google_research_uncased_L-12_H-768_A-12.txt'
    max_sequence_length: 128
    max_predictions_per_seq: 20
    batch_size: 64
model:
    hidden_size: 768
    use_position_embedding: True
    use_segment_embedding: True
    position_embedding_type: 'learned'
    max_position_embeddings: 512
    share_embedding_weights: True
    num_hidden_layers: 12
    dropout_rate: 0.1
    layer_norm_epsilon: 1e-5
    num_heads: 12
    attention_dropout_rate: 0.1
    filter_size: 3072
    encoder_nonlinearity: 'gelu'
    use_vsl: True
    mixed_precision: True
    boundary_casting: False
    tf_summary: False
optimizer:
    optimizer_type: 'adamw'
    weight_decay_rate: 0.01
    epsilon: 1e-6
    max_gradient_norm: 1.0
    disable_lr_steps_reset: True
    learning_rate:
        - steps: 10000
          scheduler: 'Linear'
          initial_learning_rate: 0.0
          end_learning_rate: 0.0001
        - scheduler: 'Linear'
          initial_learning_rate: 0.0001
          end_learning_rate: 0.0
          steps: 1000000
    loss_scaling_factor: 'dynamic'
runconfig:
    save_summary_steps: 100
    save_checkpoints_steps: 10000
    keep_checkpoint_max: 0
    max_steps: 900000
    enable_distributed: False
    model_dir: 'model_dir'
    cs_ip:
    mode: 'train'
    eval_steps: 10
"""

TF_CLASSIFIER = """
train_input:
    data_processor: Sst2DataProcessor
    data_dir: './sst2'
    vocab_file: '../../../../vocab/google_research_uncased_L-12_H-768_A-12.txt'
    max_sequence_length: 72
    batch_size: 12
    shuffle: True
model:
    pretrain_params_path: '../../configs/pretraining.yaml'
    cls_dropout_rate: 0.2
    num_cls_classes: 2
    mixed_precision: True
optimizer:
    optimizer_type: 'adamw'
    epsilon: 1e-6
    learning_rate: 5e-6
runconfig:
    max_steps: 20000
    save_checkpoints_steps: 1000
"""

TF_GPT2 = """
train_input:
    data_processor: GptTfRecordsProcessor
    data_dir: ['./owt/train', './owt/more']
    vocab_size: 50257
    max_sequence_length: 1024
    batch_size: 32
model:
    hidden_size: 768
    num_hidden_layers: 12
    num_heads: 12
    filter_size: 3072
    nonlinearity: 'gelu'
    max_position_embeddings: 1024
    dropout_rate: 0.1
    attention_dropout_rate: 0.1
    layer_norm_epsilon: 1e-5
    loss_scaling: 'batch_size'
    loss_weight: 0.0009765625
    mixed_precision: True
optimizer:
    optimizer_type: 'adamw'
    weight_decay_rate: 0.01
    learning_rate: 0.00028
    loss_scaling_factor: 'dynamic'
    initial_loss_scale: 65536.0
    max_loss_scale: 4290774016.0
runconfig:
    max_steps: 1000000
    save_checkpoints_steps: 5000
"""

TF_NEOX = """
train_input:
    data_processor: "GptTfRecordsProcessor"
    data_dir: "./pile/train"
    vocab_size: 50432
    max_sequence_length: 2048
    batch_size: 50
model:
    share_embedding_weights: False
    max_position_embeddings: 2048
    hidden_size: 6144
    num_heads: 64
    num_hidden_layers: 44
    use_untied_layer_norm: True
    use_projection_bias_in_attention: True
    use_ffn_bias_in_attention: True
    use_ffn_bias: True
    filter_size: 24576
    nonlinearity: "gelu"
    rotary_dim: 24
    layer_norm_epsilon: 1.0e-5
    use_bias_in_output: False
    embedding_initializer:
        - name: "variance_scaling"
          scale_type: "small_init"
          mode: "fan_out"
          distribution: "untruncated_normal"
    initializer:
        - name: "variance_scaling"
          scale_type: "small_init"
          distribution: "untruncated_normal"
    output_layer_initializer:
        - name: "variance_scaling"
          scale_type: "wang_init"
          distribution: "untruncated_normal"
    mixed_precision: True
optimizer:
    optimizer_type: "adamw"
    beta1: 0.9
    beta2: 0.95
    epsilon: 1.0e-8
    weight_decay_rate: 0.01
    max_gradient_value: 0.5
    use_bias_correction: True
    learning_rate:
        - scheduler: "Linear"
          initial_learning_rate: 0.0
          end_learning_rate: 0.97e-4
          steps: 1500
        - scheduler: "Cosine"
          initial_learning_rate: 0.97e-4
          alpha: 0.1
          decay_steps: 148500
runconfig:
    max_steps: 150000
    num_wgt_servers: 24
    tf_random_seed: 1202
"""

PT_BERT = """
train_input:
    data_processor: "BertCSVDynamicMaskDataProcessor"
    data_dir: "./csv/train"
    vocab_file: "./vocab.txt"
    max_sequence_length: 512
    max_predictions_per_seq: 80
    batch_size: 256
    shuffle_seed: 7
    do_lower: True
    whole_word_masking: False
model:
    vocab_size: 30522
    hidden_size: 768
    num_hidden_layers: 12
    num_heads: 12
    filter_size: 3072
    encoder_nonlinearity: "gelu"
    dropout_rate: 0.1
    attention_dropout_rate: 0.1
    max_position_embeddings: 512
    mlm_loss_weight: 0.019
    layer_norm_epsilon: 1.0e-5
    mixed_precision: True
optimizer:
    optimizer_type: "AdamW"
    correct_bias: True
    weight_decay_rate: 0.01
    disable_lr_steps_reset: True
    learning_rate:
       - scheduler: "Linear"
         initial_learning_rate: 0.0
         end_learning_rate: 0.0001
         steps: 10000
       - scheduler: "Linear"
         initial_learning_rate: 0.0001
         end_learning_rate: 0.0
         steps: 1000000
    loss_scaling_factor: "dynamic"
    max_gradient_norm: 1.0
runconfig:
    max_steps: 900000
    log_steps: 100
    checkpoint_steps: 5000
    seed: 1
    save_losses: True
"""

PT_GPTJ = """
train_input:
    data_processor: "GptHDF5DataProcessor"
    data_dir: "./pile"
    batch_size: 120
    num_workers: 8
eval_input:
    data_processor: "GptHDF5DataProcessor"
    data_dir: "./pile-val"
    batch_size: 120
model:
    vocab_size: 50257
    position_embedding_type: "rotary"
    share_embedding_weights: False
    embedding_dropout_rate: 0.0
    hidden_size: 4096
    num_heads: 16
    num_hidden_layers: 28
    max_position_embeddings: 2048
    attention_type: "scaled_dot_product"
    use_projection_bias_in_attention: False
    use_ffn_bias_in_attention: False
    use_ffn_bias: True
    filter_size: 16384
    nonlinearity: "gelu"
    attention_dropout_rate: 0.0
    residual_dropout_rate: 0.0
    rotary_dim: 64
    layer_norm_epsilon: 1.0e-5
    use_bias_in_output: True
    initializer_range: 0.02
    loss_scaling: "num_tokens"
    fp16_type: "cbfloat16"
    mixed_precision: True
optimizer:
    optimizer_type: "adamw"
    eps: 1.0e-6
    weight_decay: 0.1
    max_gradient_norm: 1.0
    learning_rate:
        - total_iters: 12800
          scheduler: "Linear"
          initial_learning_rate: 0.0
          end_learning_rate: 5.809e-5
        - scheduler: "CosineDecay"
          initial_learning_rate: 5.809e-5
          total_iters: 1280000
          end_learning_rate: 5.809e-6
        - scheduler: "Constant"
          learning_rate: 5.809e-6
runconfig:
    max_steps: 1493333
    log_steps: 100
    checkpoint_steps: 10000
    eval_frequency: 10000
    eval_steps: 20
    num_csx: 1
"""

_TRAINER = """
trainer:
  init:
    backend:
      backend_type: CSX
      cluster_config:
        num_csx: 1
    seed: 4
    model_dir: ./out
    model:
      name: "gpt3"
      vocab_size: 50257
      hidden_size: 768
      num_hidden_layers: 10
      num_heads: 12
      filter_size: 3072
      max_position_embeddings: 2048
      dropout_rate: 0.0
      layer_norm_epsilon: 1.0e-05
      embedding_initializer: {name: truncated_normal, mean: 0.0, std: 0.02, a: -0.04, b: 0.04}
      initializer: {name: truncated_normal, mean: 0.0, std: 0.02, a: -0.04, b: 0.04}
      output_layer_initializer: {name: truncated_normal, mean: 0.0, std: 0.00447, a: -0.00894, b: 0.00894}
    optimizer:
      AdamW:
        betas: [0.9, 0.95]
        eps: 1e-8
        weight_decay: 0.1
        correct_bias: true
    schedulers:
    - SequentialLR:
        schedulers:
        - LinearLR:
            initial_learning_rate: 0.0
            end_learning_rate: 0.0006
            total_iters: 1525
        - CosineDecayLR:
            initial_learning_rate: 0.0006
            end_learning_rate: 6.0e-05
            total_iters: 7512
    precision:
      enabled: true
      fp16_type: cbfloat16
      loss_scaling_factor: dynamic
      max_gradient_norm: 1.0
    loop:
      max_steps: 9037
      eval_frequency: 1000
      eval_steps: 71
    checkpoint:
      steps: 1000
    logging:
      log_steps: 10
    callbacks:
    - ComputeNorm: {}
    - KeepNCheckpoints:
        n: 2
  fit:
    train_dataloader:
      data_processor: GptHDF5MapDataProcessor
      data_dir: $MODELZOO_ROOT/data/train
      batch_size: 120
    val_dataloader: &val
      data_processor: GptHDF5MapDataProcessor
      data_dir: $MODELZOO_ROOT/data/val
      batch_size: 60
  validate:
    val_dataloader: *val
  validate_all:
    val_dataloaders: *val
"""
TRAINER = _TRAINER

_ENTRY = "\n".join("  " + line for line in _TRAINER.strip().splitlines())
PHASES = (
    ("\n" + _ENTRY).replace("\n  trainer:", "\n- trainer:")
    + "\n"
    + _ENTRY.replace("  trainer:", "- trainer:", 1)
    .replace("max_steps: 9037", "max_steps: 500")
    .replace("&val", "&val2")
    .replace("*val", "*val2")
)

ERAS = {
    "tf-bert": TF_BERT, "tf-gpt2": TF_GPT2, "tf-neox": TF_NEOX, "pytorch-bert": PT_BERT, "pytorch-gptj": PT_GPTJ,
    "trainer-gpt3": TRAINER,
}  # fmt: skip

# Overrides that leave the kind of model and make it small.
SHRUNK = ["model.hidden_size=32", "model.num_hidden_layers=2", "model.num_heads=2", "model.filter_size=64"]
