-- Where things are in a trace that `megatrace export` wrote.
--
-- Arguments say what the tables of the capture say. Times are of the trace: the
-- globaltimer of the first rank, onto which other ranks and the host are placed.

-- GPUs, a track each and one more for every lane of overlapping launches.
CREATE OR REPLACE PERFETTO TABLE megatrace_gpu_track (
  -- The track.
  track_id JOINID(track.id),
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes; 1 where it has had one.
  process LONG,
  -- Whether its times are of the host build, which says nothing about a GPU.
  is_cpu BOOL
) AS
SELECT
  id AS track_id,
  cast(substr(name, 6) AS INT) AS rank,
  iif(name GLOB 'rank *#*', cast(substr(name, instr(name, '#') + 1) AS INT), 1) AS process,
  name GLOB '*device=cpu*' AS is_cpu
FROM track
WHERE
  parent_id IS NULL AND name GLOB 'rank * GPU*';

-- Warps of the SMs, a track each and one more for every lane of what overlaps.
CREATE OR REPLACE PERFETTO TABLE megatrace_warp_track (
  -- The track.
  track_id JOINID(track.id),
  -- Rank of its GPU.
  rank LONG,
  -- Which of its processes.
  process LONG,
  -- The track of its SM.
  sm_track_id JOINID(track.id),
  -- SM.
  sm LONG,
  -- Block of the grid; null where the SM ran several.
  block LONG,
  -- Warp of the block.
  warp LONG,
  -- Role of the warp, `warp 3` where it has no name.
  role STRING
) AS
SELECT
  warp.id AS track_id,
  gpu.rank,
  gpu.process,
  sm.id AS sm_track_id,
  cast(substr(sm.name, 4) AS INT) AS sm,
  iif(
    sm.name GLOB '* (block *',
    cast(substr(sm.name, instr(sm.name, '(block ') + 7) AS INT),
    NULL
  ) AS block,
  cast(substr(warp.name, length(rtrim(warp.name, '0123456789')) + 1) AS INT) AS warp,
  iif(
    warp.name GLOB 'warp [0-9]*',
    warp.name,
    substr(warp.name, 1, length(rtrim(warp.name, '0123456789')) - 2)
  ) AS role
FROM track AS warp
JOIN track AS sm
  ON warp.parent_id = sm.id
JOIN megatrace_gpu_track AS gpu
  ON sm.parent_id = gpu.track_id
WHERE
  sm.name GLOB 'SM [0-9]*' AND warp.name GLOB '*[0-9]'
ORDER BY
  track_id;

-- Launches of warps: which block ran. What a warp said in one lies within it on its track.
CREATE OR REPLACE PERFETTO TABLE megatrace_warp_launches (
  -- The launch on the track of the warp.
  id JOINID(slice.id),
  -- When the warp began it.
  ts TIMESTAMP,
  -- How long the warp was in it.
  dur DURATION,
  -- The track of the warp.
  track_id JOINID(track.id),
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes.
  process LONG,
  -- Launch of that process on the GPU, numbered from 0.
  launch_no LONG,
  -- The track of the SM.
  sm_track_id JOINID(track.id),
  -- SM that the block ran on.
  sm LONG,
  -- Block of the grid.
  block LONG,
  -- Warp of the block.
  warp LONG,
  -- Role of the warp.
  role STRING
) AS
SELECT
  slice.id,
  slice.ts,
  slice.dur,
  slice.track_id,
  warp.rank,
  warp.process,
  extract_arg(slice.arg_set_id, 'debug.launch') AS launch_no,
  warp.sm_track_id,
  warp.sm,
  extract_arg(slice.arg_set_id, 'debug.block') AS block,
  warp.warp,
  warp.role
FROM slice
JOIN megatrace_warp_track AS warp USING (track_id)
WHERE
  slice.category = 'warp'
ORDER BY
  id;

CREATE OR REPLACE PERFETTO INDEX megatrace_warp_launches_of_track
ON megatrace_warp_launches(track_id, ts);

CREATE OR REPLACE PERFETTO INDEX megatrace_warp_launches_of_sm
ON megatrace_warp_launches(sm_track_id, warp, ts);

-- The dependency that an event is about.
CREATE OR REPLACE PERFETTO TABLE megatrace_event_edge (
  -- Event.
  event STRING,
  -- Dependency.
  edge STRING
) AS
SELECT
  substr(name, length('cr-megatrace.edge.') + 1) AS event,
  str_value AS edge
FROM metadata
WHERE
  name GLOB 'cr-megatrace.edge.*';

-- The dependency that a record is about; null where it is about none.
CREATE OR REPLACE PERFETTO FUNCTION megatrace_edge_of(
  -- Event.
  event STRING,
  -- Arguments of the record.
  arg_set_id ARGSETID
)
-- The dependency.
RETURNS STRING AS
SELECT
  coalesce(
    extract_arg($arg_set_id, 'debug.edge'),
    (SELECT edge FROM megatrace_event_edge WHERE event = $event)
  );
