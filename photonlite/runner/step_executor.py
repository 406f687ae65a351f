"""Launch, finalize, collect: which host array is filled when, and which events tie the streams together.

```
launch     fill rows ─> upload: copy rows ─● uploaded ─> compute: forward ─● forward_ended
finalize   fill choices, masks ─> upload: copy them ─● choices_uploaded ─> compute: sample ─● finalize_ended
                                                                      ─> download: copy results ─● copied
collect    wait for `copied`, read results                              the only place where the host waits
```

Images are encoded by steps on the compute stream, or beside these, on a stream of their own that no other one waits
for: the host sees the end of such a step before it launches what reads its features. Where a card is divided an engine
does both, and all launches of an image are on one stream.

```
encode     encode: copy crops, forward ─● forward_ended                                 the host asks now and then
prompt     encode: copy rows, forward, next tokens ─● forward_ended               the same, where a card is divided
forget     compute: ... prompts ─● prompts_queued ─> encode: free features         later encode steps reuse the memory
```

A `ModelRunner` does the work. Its exceptions, now or later on a stream's thread, are kept with the step, skip the
rest of its work, and are raised by `launch`, `finalize` or `collect` once the forward pass has left the slot.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from photonlite.batch import CropGroup, EncodeJob, PageCopy, ScheduledBatch, Step, Transfer
from photonlite.device.base import Device, Event, Stream
from photonlite.errors import NumericalError
from photonlite.observe.trace import Tracer, Track
from photonlite.request import Allowed, Token
from photonlite.runner.sampling_params import SampledRow, Variant, read_results
from photonlite.runner.slot_inputs import SlotInputs
from photonlite.runner.slots import ENCODER_SLOTS, EncoderSlot, Slot, SlotShape

_SWAP_SPANS: Mapping[str, tuple[str, Track]] = {"out": ("swap out", "download"), "in": ("swap in", "upload")}

_ANCHORED_S = 60.0  # seconds for which the times of events stay precise to some microseconds


class ModelRunner(Protocol):
    """Work inside a step on one device, without streams, events or the life of slots.

    Methods are called on the stream that their name suggests, in stream order. Host arrays of a slot are read when the
    work runs, not when it is queued, as copy engines do.
    """

    @property
    def shape(self) -> SlotShape: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def coordinates(self) -> Sequence[float]: ...  # the coordinate of each bin
    @property
    def sizes(self) -> Sequence[float]: ...  # the width or height of each bin

    # The rows that a decode step of `rows` rows, some with adapters, runs with, and whether a graph runs it.
    def padded(self, rows: int, *, adapted: bool = False) -> tuple[int, bool]: ...

    # The batch sizes that have graphs in decoding's part of the card too, which `slot.in_part` asks for.
    @property
    def part_sizes(self) -> Sequence[int]: ...

    # Copies to the device. Prompts: the first `count` of `slot.tokens` and other inputs. Crops: these, or images that
    # the device cuts into crops. Choices: the first `count`, and what else the variant reads, such as masks.
    def upload_rows(self, slot: Slot, count: int) -> None: ...
    def upload_prompts(self, slot: Slot, plan: ScheduledBatch, count: int) -> None: ...
    def upload_crops(self, slot: EncoderSlot, groups: Sequence[CropGroup]) -> None: ...
    def upload_choices(self, slot: Slot, count: int, variant: Variant) -> None: ...

    # Work on uploaded inputs. Encode keeps each job's features until `forget`. Prefill leaves the raw hidden state of
    # each row's last position, or, in a slot beside others, puts the token behind it into the pending table. Decode
    # leaves that of one position of each row, embedded from the pending table, which is where a prefill that carries
    # rows which decode finds their inputs too. Finalize samples a token for each row with the heads of the variant, and
    # writes it to pending table and results.
    def encode(self, slot: EncoderSlot, groups: Sequence[CropGroup]) -> None: ...
    def prefill(self, slot: Slot, plan: ScheduledBatch) -> None: ...
    def decode(self, slot: Slot, count: int) -> None: ...
    def copy_pages(self, copies: Sequence[PageCopy]) -> None: ...
    def finalize(self, slot: Slot, count: int, variant: Variant, *, sampled: bool) -> None: ...

    # Copies the first `count` results to `slot.results`, and scores to `slot.scores`.
    def download(self, slot: Slot, count: int, variant: Variant) -> None: ...

    # Copies pages, and a row of the pending table, to host memory or back, on a stream of its own.
    def swap(self, transfer: Transfer) -> None: ...

    def forget(self, job: EncodeJob) -> None: ...  # drop its crops, features and embeddings
    def free_memory(self) -> None: ...  # return memory that is cached for later work only
    def close(self) -> None: ...


class StepExecutor:
    """Runs steps on a device through streams, events and the host arrays of `depth` slots; see `batch.Executor`."""

    def __init__(
        self,
        device: Device,
        model_runner: ModelRunner,
        depth: int,
        tracer: Tracer | None = None,
        *,
        encodes_beside: bool = False,
        prompts_beside: bool = False,
    ) -> None:
        self._device = device
        self._model_runner = model_runner
        self._slots = [Slot(index, device, model_runner.shape) for index in range(depth)]
        self._encoder_slots: Sequence[EncoderSlot] = ()
        self._prompts_queued = device.event()
        if encodes_beside:
            self._encoder_slots = [
                Slot(index, device, model_runner.shape, beside=True)
                if prompts_beside
                else EncoderSlot(index, device, beside=True)
                for index in range(ENCODER_SLOTS)
            ]
        self._inputs = SlotInputs(model_runner.shape, model_runner.vocab_size)
        self._transfers: dict[Transfer, tuple[Event, Event]] = {}
        self._tracer = tracer or Tracer(enabled=False)
        self._anchored: float | None = None
        self._first_traced = 0

    def launch(self, step: Step) -> None:
        self._anchor(step)
        if step.kind == "encode":
            self._launch_encode(step)
            return
        if step.plan.beside:
            self._launch_beside(step)
            return
        slot = self._slots[step.slot]
        if step.kind == "decode":
            self._launch_decode(step, slot)
        else:
            self._launch_prefill(step, slot)
        self._device.compute.record(slot.forward_ended)
        _raise(step, slot)

    def finalize(self, step: Step, allowed: Sequence[Allowed | None]) -> None:
        slot, runner, device = self._slots[step.slot], self._model_runner, self._device
        (variant, sampled), count = self._inputs.fill_params(step, slot, allowed), step.padded

        self._run(step, device.upload, lambda: runner.upload_choices(slot, count, variant))
        device.upload.record(slot.choices_uploaded)
        device.compute.wait(slot.choices_uploaded)
        device.compute.record(slot.finalize_begun)
        self._run(step, device.compute, lambda: runner.finalize(slot, count, variant, sampled=sampled))
        device.compute.record(slot.finalize_ended)
        device.download.wait(slot.finalize_ended)
        device.download.record(slot.copy_begun)
        self._run(step, device.download, lambda: runner.download(slot, len(step.rows), variant))
        device.download.record(slot.copied)
        _raise(step, slot)

    def collect(self, step: Step) -> list[Token | Exception | None]:
        if step.kind == "encode" or step.plan.beside:
            encoded = self._slot_of(step)
            encoded.forward_ended.wait()
            self._note_end(step, encoded)
            return [None] * len(step.rows)
        slot = self._slots[step.slot]
        slot.copied.wait()
        self._note_end(step, slot)
        results = read_results(slot.results, len(step.rows))
        return [self._outcome(step, slot, index, result) for index, result in enumerate(results)]

    def has_ended(self, step: Step) -> bool:
        try:
            return self._encoder_slots[step.slot].forward_ended.done
        except Exception:  # the device is lost, which `collect` raises
            return True

    def transfer(self, transfer: Transfer) -> None:
        if transfer.direction == "in":
            self._inputs.forget_row(transfer.row)

        def guarded() -> None:
            try:
                self._model_runner.swap(transfer)
            except Exception as error:
                transfer.failure = error

        begun, ended = self._transfers[transfer] = self._device.event(), self._device.event()
        stream = self._device.swap
        stream.record(begun)
        stream.run(guarded)
        stream.record(ended)

    def transferred(self, transfer: Transfer, *, wait: bool) -> bool:
        begun, ended = self._transfers[transfer]
        if not wait and not ended.done:
            return False
        ended.wait()
        del self._transfers[transfer]
        transfer.device_s = self._device.elapsed(begun, ended)
        if self._tracer.enabled and self._anchored is not None:
            start, (name, track) = self._device.time_of(begun), _SWAP_SPANS[transfer.direction]
            args = {"sequence": transfer.sequence.number, "pages": len(transfer.pages)}
            self._tracer.span(track, name, start, start + transfer.device_s, **args)
        return True

    def forget(self, job: EncodeJob) -> None:
        compute, encode = self._device.compute, self._device.encode
        if job.beside:
            # Prompts that are queued may read the features, and encode steps after this may reuse their memory.
            compute.record(self._prompts_queued)
            encode.wait(self._prompts_queued)
        (encode if job.beside else compute).run(lambda: self._model_runner.forget(job))

    def free_memory(self) -> None:
        self._device.compute.run(self._model_runner.free_memory)

    def close(self) -> None:
        try:
            self._device.close()
        finally:
            self._model_runner.close()

    def _slot_of(self, step: Step) -> EncoderSlot:
        return (self._encoder_slots if step.plan.beside else self._slots)[step.slot]

    def _launch_encode(self, step: Step) -> None:
        slot, groups, device = self._slot_of(step), step.plan.groups, self._device
        slot.in_part = step.plan.in_part
        # Beside others it copies on its own stream: rows and masks of steps would have to wait behind large images.
        stream, copies = (device.encode, device.encode) if slot.beside else (device.compute, device.upload)
        self._upload(step, slot, lambda: self._model_runner.upload_crops(slot, groups), stream, copies)
        self._run(step, stream, lambda: self._model_runner.encode(slot, groups))
        stream.record(slot.forward_ended)
        _raise(step, slot)

    def _launch_prefill(self, step: Step, slot: Slot) -> None:
        plan, runner = step.plan, self._model_runner
        # The rows that sample are padded with those that decode, as both are then done in one graph.
        step.padded = runner.padded(len(plan.rows))[0] if step.kind == "mixed" else len(plan.rows)
        slot.in_part = False
        self._run_prompts(step, slot, self._device.compute, self._device.upload)

    def _launch_beside(self, step: Step) -> None:
        slot, stream, step.padded = self._slot_of(step), self._device.encode, len(step.rows)
        assert isinstance(slot, Slot), "prompts are launched beside others by an executor that was not made for it"
        self._run_prompts(step, slot, stream, stream)
        stream.record(slot.forward_ended)
        _raise(step, slot)

    def _run_prompts(self, step: Step, slot: Slot, stream: Stream, copies: Stream) -> None:
        plan, runner = step.plan, self._model_runner
        count = self._inputs.fill_tokens(plan, slot)
        self._inputs.fill_rows(plan, slot, step.padded)

        def upload() -> None:
            runner.upload_rows(slot, step.padded)
            runner.upload_prompts(slot, plan, count)

        def forward() -> None:
            runner.copy_pages(plan.copies)
            runner.prefill(slot, plan)
            runner.copy_pages(plan.saves)

        self._upload(step, slot, upload, stream, copies)
        self._run(step, stream, forward)

    def _launch_decode(self, step: Step, slot: Slot) -> None:
        plan, runner, device = step.plan, self._model_runner, self._device
        adapted = any(row.sequence.adapter_slot for row in plan.rows)
        step.padded, step.graphed = runner.padded(len(plan.rows), adapted=adapted)
        self._inputs.fill_rows(plan, slot, step.padded)
        in_part = step.beside and step.graphed and not adapted and step.padded in runner.part_sizes
        slot.in_part = step.in_part = in_part
        self._upload(step, slot, lambda: runner.upload_rows(slot, step.padded), device.compute, device.upload)
        self._run(step, device.compute, lambda: runner.decode(slot, step.padded))

    def _upload(self, step: Step, slot: EncoderSlot, work: Callable[[], None], stream: Stream, copies: Stream) -> None:
        """Queue a copy to the device, on `copies`, that the forward pass, on `stream`, waits for."""
        copies.record(slot.upload_begun)
        self._run(step, copies, work)
        copies.record(slot.uploaded)
        stream.wait(slot.uploaded)
        stream.record(slot.forward_begun)

    def _run(self, step: Step, stream: Stream, work: Callable[[], None]) -> None:
        def guarded() -> None:
            if step.failure is None:
                try:
                    work()
                except Exception as error:
                    step.failure = error

        stream.run(guarded)

    def _outcome(self, step: Step, slot: Slot, index: int, result: SampledRow) -> Token | Exception | None:
        if index in step.faults:
            return step.faults[index]
        if not result.finite:
            return _not_finite()
        if step.rows[index].index is None:
            return None
        count = step.scored.get(index)
        scores = tuple(slot.scores[index, :count].tolist()) if count else ()
        return self._token(result, scores) if all(map(math.isfinite, scores)) else _not_finite()

    def _token(self, result: SampledRow, scores: tuple[float, ...]) -> Token:
        if result.bin0 < 0:
            return Token(result.id, (), result.probability, (), scores)
        if result.bin1 < 0:
            place = (self._model_runner.coordinates[result.bin0],)
            return Token(result.id, place, result.probability, (result.mass0,), scores)
        sizes = self._model_runner.sizes
        values = (sizes[result.bin0], sizes[result.bin1])
        return Token(result.id, values, result.probability, (result.mass0, result.mass1), scores)

    def _anchor(self, step: Step) -> None:
        """Relate the device's clock to the host's when tracing begins and once a minute: it loses precision."""
        if not self._tracer.enabled:
            self._anchored = None
        elif self._anchored is None or time.perf_counter() - self._anchored > _ANCHORED_S:
            self._device.rebase()
            self._anchored = time.perf_counter()
            self._first_traced = step.number  # the events of earlier steps precede the anchor

    def _note_end(self, step: Step, slot: EncoderSlot) -> None:
        """Raise what a step has failed with; note and trace how long it took on the device."""
        _raise(step, slot)
        step.device_s = self._device.elapsed(slot.forward_begun, slot.forward_ended)
        if self._tracer.enabled and step.number >= self._first_traced:
            self._trace(step, slot)

    def _trace(self, step: Step, slot: EncoderSlot) -> None:
        def span(track: Track, name: str, start: Event, end: Event, **notes: int) -> None:
            begun, seconds = self._device.time_of(start), self._device.elapsed(start, end)
            self._tracer.span(track, name, begun, begun + seconds, step=step.number, **notes)

        named, beside = step.kind, step.plan.known_positions if step.kind == "mixed" else 0
        in_part = step.in_part or step.plan.in_part or (step.plan.beside and bool(step.rows))
        notes = {"prompts": beside} if beside else {"part": 1} if in_part else {}
        sampled = named != "encode" and not step.plan.beside
        track: Track = "encode" if step.plan.beside else "compute"
        copies: Track = "upload" if track == "compute" else track
        span(copies, "rows" if named != "encode" else "crops", slot.upload_begun, slot.uploaded)
        span(track, "forward" if named == "decode" else named, slot.forward_begun, slot.forward_ended, **notes)
        if isinstance(slot, Slot) and sampled:
            span("compute", "finalize", slot.finalize_begun, slot.finalize_ended)
            span("download", "results", slot.copy_begun, slot.copied)


def _raise(step: Step, slot: EncoderSlot) -> None:
    if step.failure is not None:
        # The slot will be reused, and work queued before the failure may still read its page tables: it would write
        # keys and values into the pages of the next step's sequences. Only a failure waits here.
        slot.forward_ended.wait()
        raise step.failure


def _not_finite() -> NumericalError:
    return NumericalError(
        "the network's output for this request is not finite: the weights are damaged, or too large for their number "
        "type; try dtype='float32', or download the checkpoint again"
    )
