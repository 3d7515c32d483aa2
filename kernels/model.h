// The model's shapes and the records that a step shares between kernels.
//
// Function constants are bound once for the whole library, per checkpoint: a kernel is compiled for exactly one model.
#pragma once

constant uint HIDDEN [[function_constant(0)]];        // width of the residual stream
constant uint VOCABULARY [[function_constant(1)]];    // rows of the embedding and of lm_head, padding included
constant uint QUERY_HEADS [[function_constant(2)]];   // attention
constant uint KV_HEADS [[function_constant(3)]];
constant uint KEY_HEADS [[function_constant(4)]];     // DeltaNet
constant uint VALUE_HEADS [[function_constant(5)]];
constant uint EXPERTS [[function_constant(6)]];       // at most MAX_EXPERTS
constant uint EXPERT_WIDTH [[function_constant(7)]];  // of the shared expert too; at most 512
constant float EPSILON [[function_constant(8)]];      // of every RMSNorm
constant float ROPE_THETA [[function_constant(9)]];

constant constexpr uint HEAD = 256;          // attention: width of a query, key or value
constant constexpr uint ROTARY = 64;         // of which RoPE turns the first
constant constexpr uint DELTA_HEAD = 128;    // DeltaNet: width of a key or value
constant constexpr uint CONV_WIDTH = 4;
constant constexpr uint CHOSEN = 8;          // experts of a token
constant constexpr uint MAX_EXPERTS = 256;
constant constexpr uint GROUP = 64;          // weights that share a scale and a bias
constant constexpr uint PAGE = 64;           // tokens of a KV page
constant constexpr uint MAX_DECODE_ROWS = 8;
constant constexpr uint RANKS = CHOSEN + 1;  // the shared expert is the last
constant constexpr uint SAMPLE_BLOCK = 1024;  // tokens of the vocabulary that are looked at together; at most MAX_SAMPLE_BLOCKS
constant constexpr uint MAX_SAMPLE_BLOCKS = 256;
constant constexpr uint DRAWN_RING = 64;     // draws of a sequence that are kept for the CPU
constant constexpr uint NONE = 0xffffffffu;  // no slot, no token, no draw

// Of a kernel that only needs to know how many rows, or segments, there are.
struct CountParams {
  uint count;
};

// What the device remembers of a sequence between steps. Only the kernel `advance` changes position, flip and generated.
struct Sequence {
  uint position;   // tokens held: the position of its next row
  uint flip;       // which of its two conv windows and of its two DeltaNet states is current
  uint generated;  // tokens drawn: the counter of its random stream
  uint token;      // the token drawn last: its next row in a decode step
};

// A token's place in a step.
struct Row {
  uint slot;     // its sequence; NONE in rows that only pad a plan
  uint offset;   // its position is that of the sequence plus this
  uint token;    // NONE: the one the sequence drew last
  uint segment;  // the segment it belongs to
};

// A run of rows of one sequence.
struct Segment {
  uint slot;  // NONE: pads a plan
  uint first_row;
  uint rows;
  uint draw;  // index of its draw; NONE if nothing is sampled
};

// One of the experts a row passes. Rank CHOSEN of a row is the shared expert.
struct Choice {
  uint expert;   // the shared one: EXPERTS
  float weight;  // of its output in the row's sum
};

// How a sequence's next token is drawn, as lily_backend::Draw says.
struct Draw {
  uint slot;        // the sequence that takes the token; NONE pads a plan
  uint vocabulary;  // ids from here on are never drawn
  float temperature;  // 0: the largest logit
  uint top_k;         // 0 keeps all
  float top_p;        // 1 keeps all
  float min_p;        // 0 keeps all
  uint seed_low;
  uint seed_high;
  uint counter_high;      // the low word is Sequence::generated
  uint first_adjustment;  // its piece of the list of adjustments, ascending by token, a token at most once
  uint adjustments;
  uint masked;  // 1: only tokens whose bit is set in its row of the mask
  uint unseen;  // 1: the adjustments are those of the draw before, whose token, Sequence::token, is still to change them:
  float penalty_repetition;  // its repetition becomes this,
  float penalty_add;         // and what is added this; if it has an adjustment, the add_once_drawn of that
};

// A change to one logit before all else: a positive one divided by `repetition`, another multiplied, then `add` added.
struct Adjustment {
  uint token;
  float repetition;
  float add;
  float add_once_drawn;
};

// What a draw gave.
struct Drawn {
  uint token;     // NONE: no logit was finite, or the mask left none
  float logprob;  // under the model's own distribution: raw logits, no temperature
};
