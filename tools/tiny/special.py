"""Special tokens in the official order, and id layout: [0, BASE) byte-level BPE, then specials, then padding up to VOCAB."""
import os
# tokenizer.json that texts are encoded with and random-vocabulary text is drawn from: $TOKENIZER, else the checkpoint's own.
TOKFILE = os.environ.get("TOKENIZER") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "tiny", "tokenizer.json")
VOCAB = 6144
BASE = 6080
SPECIAL = ["<|endoftext|>","<|im_start|>","<|im_end|>","<|object_ref_start|>","<|object_ref_end|>","<|box_start|>","<|box_end|>","<|quad_start|>","<|quad_end|>","<|vision_start|>","<|vision_end|>","<|vision_pad|>","<|image_pad|>","<|video_pad|>","<tool_call>","</tool_call>","<|fim_prefix|>","<|fim_middle|>","<|fim_suffix|>","<|fim_pad|>","<|repo_name|>","<|file_sep|>","<tool_response>","</tool_response>","<think>","</think>","<|audio_start|>","<|audio_end|>","<tts_pad>","<tts_text_bos>","<tts_text_eod>","<tts_text_bos_single>","<|audio_pad|>"]
NOT_SPECIAL = {"<tool_call>","</tool_call>","<|fim_prefix|>","<|fim_middle|>","<|fim_suffix|>","<|fim_pad|>","<|repo_name|>","<|file_sep|>","<tool_response>","</tool_response>","<think>","</think>"}
ID = {t: BASE + i for i, t in enumerate(SPECIAL)}
EOT, IM_START, IM_END = ID["<|endoftext|>"], ID["<|im_start|>"], ID["<|im_end|>"]
PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
