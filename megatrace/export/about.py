"""What a trace says of itself: what it shows, what it leaves out, how far to trust it.

Two ways, since neither is seen by everybody: a row at the top of the timeline, whose
slices carry the facts as arguments, and rows of the viewer's table ``metadata``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from megatrace.analysis import LossTable
from megatrace.export.scene import Scene
from megatrace.export.tracks import NO_PARENT, Track

_METADATA_PREFIX = "megatrace."


def steps_text(steps: Sequence[int]) -> str:
    """``step 7``, ``steps 7, 9``, ``steps 7 to 90 (84)``, ``no step``."""
    if not steps:
        return "no step"
    if len(steps) == 1:
        return f"step {steps[0]}"
    if len(steps) <= 3:
        return "steps " + ", ".join(map(str, steps))
    return f"steps {steps[0]} to {steps[-1]} ({len(steps):,})"


def loss_text(loss: LossTable) -> str:
    """The loss in words that need no title: ``nothing lost``, ``loss unknown``."""
    text = loss.sentence()
    return "loss unknown" if text == "unknown" else text


def clock_texts(gpu_ns: float | None, host_ns: float | None) -> list[str]:
    """The errors of the clocks, in words."""
    if gpu_ns is None and host_ns == 0:
        return ["the host's own clock"]
    texts = [] if gpu_ns is None else [f"GPU clock ±{gpu_ns:,.0f} ns"]
    texts.append("no host clock" if host_ns is None else f"host ±{host_ns / 1000:,.1f} us")
    return texts


def draw_about(scene: Scene, facts: Mapping[str, str], bounds_ns: tuple[int, int]) -> None:
    """The row at the top: one slice with all ``facts``, below it one for each."""
    begin, end = bounds_ns
    root = scene.tracks.add(Track("about this trace", NO_PARENT))
    title = f"{facts['shows']}; {facts['loss']}; {facts['clock']}"
    rows = scene.add(root, scene.label(title, "about"), begin, end - begin)
    for order, (name, text) in enumerate(facts.items()):
        scene.text_arg(rows, name, text)
        track = scene.tracks.add(Track(name, root, order))
        scene.add(track, scene.label(text, "about"), begin, end - begin)


def metadata_packet(facts: Mapping[str, str], edges: Mapping[str, str]) -> bytes:
    """Rows of the viewer's table ``metadata``.

    ``cr-megatrace.<name>`` for ``facts``, ``cr-megatrace.edge.<event>`` for ``edges``.
    """
    trace = pb.Trace()
    entries = trace.packet.add(trusted_packet_sequence_id=1).chrome_events.metadata
    for name, text in facts.items():
        entries.add(name=_METADATA_PREFIX + name.replace(" ", "_"), string_value=text)
    for event, edge in edges.items():
        entries.add(name=f"{_METADATA_PREFIX}edge.{event}", string_value=edge)
    return bytes(trace.SerializeToString())
