-- Launches of GPUs: one a layer, where the kernel is a layer.

INCLUDE PERFETTO MODULE megatrace.tracks;

-- A launch of a GPU: from its first warp in to its last warp out, of the warps recorded.
-- The same as the table `launch_times` of the capture.
CREATE OR REPLACE PERFETTO TABLE megatrace_layer_times (
  -- The launch on the GPU's own track.
  id JOINID(slice.id),
  -- When it began. Same as `begin_ns`.
  ts TIMESTAMP,
  -- How long it is drawn: until the last sign of any warp.
  dur DURATION,
  -- Its track.
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
  -- First warp in, in ns.
  begin_ns LONG,
  -- Last warp out that is known, in ns; -1: none is.
  end_ns LONG,
  -- From `begin_ns` to `end_ns`, in ns; -1: not known.
  dur_ns LONG,
  -- From the end of the launch before, in ns; below 0 where they overlap, -1 also where
  -- the launch before was not recorded.
  gap_ns LONG,
  -- Blocks that left records.
  blocks_seen LONG,
  -- Warps that left records.
  warps_seen LONG,
  -- Whether each of those warps has ended and lost nothing.
  whole BOOL,
  -- Times of two SMs compare to within so many ns; -1: not known.
  clock_error_ns LONG
) AS
WITH
  launch AS (
    SELECT
      slice.*,
      gpu.rank,
      gpu.process,
      coalesce(extract_arg(slice.arg_set_id, 'debug.dur_ns'), -1) AS dur_ns
    FROM slice
    JOIN megatrace_gpu_track AS gpu USING (track_id)
    WHERE
      slice.category = 'launch'
  )
SELECT
  id,
  ts,
  dur,
  track_id,
  rank,
  process,
  extract_arg(arg_set_id, 'debug.launch') AS launch_no,
  extract_arg(arg_set_id, 'debug.step') AS step,
  extract_arg(arg_set_id, 'debug.kernel') AS kernel,
  extract_arg(arg_set_id, 'debug.layer') AS layer,
  ts AS begin_ns,
  iif(dur_ns < 0, -1, ts + dur_ns) AS end_ns,
  dur_ns,
  coalesce(
    extract_arg(arg_set_id, 'debug.gap_ns'),
    -extract_arg(arg_set_id, 'debug.overlap_ns'),
    -1
  ) AS gap_ns,
  extract_arg(arg_set_id, 'debug.blocks_seen') AS blocks_seen,
  extract_arg(arg_set_id, 'debug.warps_seen') AS warps_seen,
  extract_arg(arg_set_id, 'debug.whole') AS whole,
  coalesce(extract_arg(arg_set_id, 'debug.clock_error_ns'), -1) AS clock_error_ns
FROM launch;
