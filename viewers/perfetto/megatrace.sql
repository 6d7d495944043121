-- Views over a trace that `megatrace export` wrote, for the query page of the viewer or
-- for trace_processor. Paste it whole, or let the startup commands run it.

-- Warps: their track, and where it hangs.
create or replace perfetto view megatrace_warp as
select
  warp.id as track_id,
  warp.name as warp,
  block.name as block,
  gpu.name as gpu
from track as warp
join track as block on warp.parent_id = block.id
join track as gpu on block.parent_id = gpu.id
where gpu.name glob 'rank * GPU*' and block.name glob 'block *';

-- Everything warps said. `cause` is null for what is no stall.
create or replace perfetto view megatrace_record as
select
  slice.id, slice.ts, slice.dur, slice.name, slice.category, slice.depth, slice.track_id,
  iif(slice.category glob 'stall.*', substr(slice.category, 7), null) as cause,
  megatrace_warp.warp, megatrace_warp.block, megatrace_warp.gpu
from slice
join megatrace_warp using (track_id);

-- Launches of whole GPUs, one a layer. With dependent launch one begins before the last
-- ends; until `until` a launch is the latest one.
create or replace perfetto view megatrace_launch as
select
  slice.id, slice.ts, slice.dur, slice.name, track.name as gpu,
  lead(slice.ts, 1, slice.ts + slice.dur) over (
    partition by track.name order by slice.ts
  ) as until,
  extract_arg(slice.arg_set_id, 'debug.step') as step,
  extract_arg(slice.arg_set_id, 'debug.launch') as launch
from slice
join track on slice.track_id = track.id
where slice.category = 'launch' and track.name glob 'rank * GPU*';

-- Who let whom go. The viewer turns an arrow around where the wait began first, so which
-- end is which is told by the category.
create or replace perfetto view megatrace_edge as
select
  iif(into_.category glob 'stall.*', from_.id, into_.id) as producer_id,
  iif(into_.category glob 'stall.*', into_.id, from_.id) as wait_id
from flow
join slice as from_ on flow.slice_out = from_.id
join slice as into_ on flow.slice_in = into_.id
where from_.category glob 'stall.*' or into_.category glob 'stall.*';

-- Where warps wait: warp-microseconds a launch and cause, and the share of all warps' time.
-- What begins while two launches run counts with the later.
create or replace perfetto view megatrace_stall_by_launch as
select
  launch.gpu, launch.step, launch.name as launch, record.cause,
  count() as stalls,
  sum(record.dur) / 1e3 as warp_us,
  round(
    100.0 * sum(record.dur) / launch.dur / (
      select count(distinct warp.block || warp.warp)
      from megatrace_warp as warp
      where warp.gpu = launch.gpu
    ), 1
  ) as percent
from megatrace_record as record
join megatrace_launch as launch
  on launch.gpu = record.gpu
  and record.ts >= launch.ts
  and record.ts < launch.until
where record.cause is not null
group by launch.id, record.cause;

-- The waits that blocked longest, and who ended each.
create or replace perfetto view megatrace_longest_wait as
select
  wait.ts, wait.dur, wait.name, wait.cause, wait.gpu, wait.block, wait.warp,
  producer.name as let_go_by, producer.block as in_block, producer.warp as in_warp,
  wait.id
from megatrace_record as wait
left join megatrace_edge as edge on edge.wait_id = wait.id
left join megatrace_record as producer on producer.id = edge.producer_id
where wait.cause is not null
order by wait.dur desc;
