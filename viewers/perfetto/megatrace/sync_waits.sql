-- Who waited for whom.

INCLUDE PERFETTO MODULE megatrace.layer_times;

-- A wait for another warp's publish that blocked, and the publish that ended it: the last
-- of its edge and slot. Who published is known only where that block was recorded. The
-- same as the table `sync_waits` of the capture.
CREATE OR REPLACE PERFETTO VIEW megatrace_sync_waits (
  -- The wait.
  id JOINID(slice.id),
  -- When it began. Same as `begin_ns`.
  ts TIMESTAMP,
  -- For how long. Same as `dur_ns`.
  dur DURATION,
  -- The track of its warp.
  track_id JOINID(track.id),
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes; 1 where it has had one.
  process LONG,
  -- Launch of that process on the GPU, numbered from 0.
  launch_no LONG,
  -- Step id; 0 where the host says none.
  step LONG,
  -- Name of the kernel.
  kernel STRING,
  -- Layer.
  layer LONG,
  -- Block of the grid.
  block LONG,
  -- SM that the block ran on.
  sm LONG,
  -- Warp of the block.
  warp LONG,
  -- Role of the warp.
  role STRING,
  -- Event that says so.
  event STRING,
  -- Dependency.
  edge STRING,
  -- Which of the dependency's hand-offs; -1: it has no numbers.
  slot LONG,
  -- When it began to wait, in ns.
  begin_ns LONG,
  -- For how long, in ns.
  dur_ns LONG,
  -- Rank of the last arriver, of the same process; -1: not known.
  from_rank LONG,
  -- Its block; -1: not known.
  from_block LONG,
  -- Its SM; -1: not known.
  from_sm LONG,
  -- Its warp; -1: not known.
  from_warp LONG,
  -- When it published, in ns; -1: not known.
  publish_ns LONG,
  -- From the publish to the wait's end, in ns; may be below 0 by the error of the clocks,
  -- -1 also where `from_block` is.
  delay_ns LONG
) AS
WITH
  wait AS (
    SELECT
      slice.*,
      extract_arg(slice.arg_set_id, 'debug.launch') AS launch_no,
      extract_arg(slice.arg_set_id, 'debug.from_block') AS from_block,
      extract_arg(slice.arg_set_id, 'debug.from_nobody_known') AS from_nobody,
      coalesce(
        extract_arg(slice.arg_set_id, 'debug.delay_ns'),
        -extract_arg(slice.arg_set_id, 'debug.delay_below_0_ns')
      ) AS delay_ns
    FROM slice
    WHERE
      slice.dur > 0 AND slice.category GLOB 'stall.*'
  ),
  place AS (
    SELECT
      rank,
      process,
      block,
      max(sm) AS sm
    FROM megatrace_warp_launches
    GROUP BY
      rank,
      process,
      block
  )
SELECT
  wait.id,
  wait.ts,
  wait.dur,
  wait.track_id,
  warp.rank,
  warp.process,
  wait.launch_no,
  launch.step,
  launch.kernel,
  launch.layer,
  coalesce(extract_arg(wait.arg_set_id, 'debug.block'), warp.block) AS block,
  warp.sm,
  warp.warp,
  warp.role,
  wait.name AS event,
  megatrace_edge_of(wait.name, wait.arg_set_id) AS edge,
  coalesce(extract_arg(wait.arg_set_id, 'debug.slot'), -1) AS slot,
  wait.ts AS begin_ns,
  wait.dur AS dur_ns,
  iif(
    wait.from_block IS NULL,
    -1,
    coalesce(extract_arg(wait.arg_set_id, 'debug.from_rank'), warp.rank)
  ) AS from_rank,
  coalesce(wait.from_block, -1) AS from_block,
  coalesce(extract_arg(wait.arg_set_id, 'debug.from_sm'), place.sm, -1) AS from_sm,
  coalesce(extract_arg(wait.arg_set_id, 'debug.from_warp'), -1) AS from_warp,
  coalesce(wait.ts + wait.dur - wait.delay_ns, -1) AS publish_ns,
  coalesce(wait.delay_ns, -1) AS delay_ns
FROM wait
JOIN megatrace_warp_track AS warp USING (track_id)
JOIN megatrace_layer_times AS launch
  ON launch.rank = warp.rank
  AND launch.process = warp.process
  AND launch.launch_no = wait.launch_no
LEFT JOIN place
  ON place.rank = warp.rank
  AND place.process = warp.process
  AND place.block = wait.from_block
WHERE
  wait.from_block IS NOT NULL OR wait.from_nobody IS NOT NULL;
