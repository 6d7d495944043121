"""What the warps of the Muse Spark layer kernel say: the table its views are built on.

Roles: eight ``tensor`` warps, three ``math`` warps, one ``loader`` on every SM. A phase is a
span in each warp that takes part in it; a hand-off between blocks is a publish and the wait
it ends, met by edge and slot; a weight stage asked for before its phase can begin is a
prefetch, and its first touch says whether it came in time.
"""

from __future__ import annotations

from megatrace.schema import Arg, Cause, Event, EventTable, Kind

ROLES: tuple[str, ...] = (*["tensor"] * 8, *["math"] * 3, "loader")
"""Role of each warp of a block, in order."""

_PHASES: tuple[tuple[str, str], ...] = (
    ("embed", "Token to residual stream and input of layer 0."),
    ("attention", "This block's chunk of keys against all query rows of a kv head."),
    ("attention_merge", "Partial attention of all chunks to one head: norm and gate."),
    ("o_proj", "Output projection of the attention."),
    ("attn_boundary", "Sum over ranks, residual gate, input of router and experts; a row."),
    ("router", "Router logits and pre-expert projection."),
    ("route", "Top-k experts and normed expert input; a row."),
    ("experts_up", "Gate and up rows of the experts hit, and SwiGLU."),
    ("experts_down", "Down rows of the experts hit."),
    ("expert_sum", "Norm a token and slot, weighted sum, sum over ranks; a row."),
    ("post_proj", "Post-expert projection."),
    ("ffn_boundary", "Residual gate and input of the next layer; a row."),
    ("qkv", "Query, key, value and gate of the next layer."),
    ("qkv_finish", "Norm and rotation of query and key, KV write, of the next layer."),
)
PHASES: tuple[str, ...] = tuple(name for name, _ in _PHASES)
"""Names of the phases in the order a launch runs them: ``Phase`` of params.cuh."""

_HANDOFFS: tuple[tuple[str, str], ...] = (
    ("attn_part", "partial attention of a chunk of keys"),
    ("heads", "normed, gated heads"),
    ("o_part", "a slice of the output projection"),
    ("x", "a row of the input of router and experts"),
    ("router_part", "a slice of router logits and pre-expert projection"),
    ("routes", "a row's experts, their weights and its expert input"),
    ("act", "SwiGLU rows of an expert"),
    ("down", "down rows of an expert"),
    ("expert_row", "a row's weighted sum over its experts"),
    ("post_part", "a slice of the post-expert projection"),
    ("a", "a row of the input of the next layer"),
    ("qkv_part", "a slice of the next layer's QKV"),
    ("row_sum", "what 128 columns add to a row's sums of squares"),
)

_FIRST_SPAN, _FIRST_HANDOFF = 16, 64

_OTHERS: tuple[Event, ...] = (
    Event(48, "weights", Kind.STALL, "A stage of weights has not arrived.", cause=Cause.DATA),
    Event(
        49,
        "stage_free",
        Kind.STALL,
        "No stage of the consumer's ring may be filled: it is full, or weights are held back.",
        cause=Cause.SPACE,
    ),
    Event(
        50,
        "early_weights",
        Kind.PREFETCH,
        "The first stage of a phase, of all warps, asked for before its input; slot is phase.",
        edge="early_weights",
    ),
    Event(
        51,
        "first_weights",
        Kind.WAIT,
        "The first touch of a phase's weights; slot is phase.",
        cause=Cause.DATA,
        edge="early_weights",
    ),
    Event(
        52,
        "routing_table",
        Kind.STALL,
        "The block's table of experts is not made yet.",
        cause=Cause.INPUT,
    ),
    Event(53, "distinct_experts", Kind.COUNTER, "Local experts that this step's rows hit."),
    Event(
        54,
        "expert",
        Kind.INSTANT,
        "This block begins with the rows of an expert.",
        args=(Arg("expert", "", "Local id."), Arg("tokens")),
    ),
    Event(
        55,
        "peer_row",
        Kind.PUBLISH,
        "A row is on its way to every rank; slot is exchange * 16 + row.",
        edge="peer",
    ),
    Event(
        56,
        "peer_row_wait",
        Kind.WAIT,
        "A rank's row is missing; slot is exchange * 16 + row.",
        cause=Cause.PEER,
        edge="peer",
    ),
    Event(
        57,
        "l2_prefetch",
        Kind.PREFETCH,
        "Weights of a later phase asked into the L2 cache; slot is phase.",
        edge="l2_weights",
    ),
)


def _phase(index: int, name: str, doc: str) -> Event:
    return Event(_FIRST_SPAN + 2 * index, name, Kind.SPAN, doc, category="phase")


def _handoff(index: int, name: str, doc: str) -> tuple[Event, Event]:
    """A publish and the wait that it ends; their slot is the block that hands over."""
    code = _FIRST_HANDOFF + 2 * index
    done = f"Handed over: {doc}; slot is the block that says so."
    missing = f"Missing: {doc}; slot is the block that owes it, the last one missed."
    return (
        Event(code, name, Kind.PUBLISH, done, "hand-off", edge=name),
        Event(code + 1, f"{name}_wait", Kind.WAIT, missing, "hand-off", Cause.INPUT, name),
    )


MUSE = EventTable(
    "muse",
    (
        *(_phase(i, name, doc) for i, (name, doc) in enumerate(_PHASES)),
        *_OTHERS,
        *(event for i, (name, doc) in enumerate(_HANDOFFS) for event in _handoff(i, name, doc)),
    ),
)
"""Events of kernels/sm103; its header is ``muse_events.cuh``."""
