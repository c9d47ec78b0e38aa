"""Small configurations of models."""

TINY = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8,
    "num_key_value_heads": 2,
}  # fmt: skip
MOE = TINY | {
    "model_type": "qwen2_moe", "num_experts": 12, "num_experts_per_tok": 4, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 80,
}  # fmt: skip
