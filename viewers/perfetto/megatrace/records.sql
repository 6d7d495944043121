-- Everything warps said, and the arrows between.

INCLUDE PERFETTO MODULE megatrace.tracks;

-- A record of a warp.
CREATE OR REPLACE PERFETTO VIEW megatrace_records (
  -- The record.
  id JOINID(slice.id),
  -- When it began.
  ts TIMESTAMP,
  -- How long it lasted; 0: an instant, or a wait that did not block.
  dur DURATION,
  -- Event.
  name STRING,
  -- Category of the event; `stall.<cause>` of stalls and waits.
  category STRING,
  -- Why the warp stalled: `data`, `space`, `input`, `peer`; null for what is no stall.
  cause STRING,
  -- Dependency that the event is about; null for none.
  edge STRING,
  -- Which of the dependency's hand-offs; null for none.
  slot LONG,
  -- How deep it lies in others; 1 lies in the launch alone.
  depth LONG,
  -- The track of the warp.
  track_id JOINID(track.id),
  -- Rank of the GPU.
  rank LONG,
  -- Which of its processes; 1 where it has had one.
  process LONG,
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
  slice.name,
  slice.category,
  iif(slice.category GLOB 'stall.*', substr(slice.category, 7), NULL) AS cause,
  megatrace_edge_of(slice.name, slice.arg_set_id) AS edge,
  extract_arg(slice.arg_set_id, 'debug.slot') AS slot,
  slice.depth,
  slice.track_id,
  warp.rank,
  warp.process,
  warp.sm,
  coalesce(
    warp.block,
    -- It says so itself where times alone do not tell.
    extract_arg(slice.arg_set_id, 'debug.block'),
    -- Launches of a warp follow each other on a track.
    (
      SELECT
        launch.block
      FROM megatrace_warp_launches AS launch
      WHERE
        launch.track_id = slice.track_id
        AND launch.ts <= slice.ts
        AND launch.ts + launch.dur >= slice.ts + slice.dur
      ORDER BY
        launch.ts DESC
      LIMIT 1
    ),
    -- What overlaps another record has left the track of its launch.
    (
      SELECT
        launch.block
      FROM megatrace_warp_launches AS launch
      WHERE
        launch.sm_track_id = warp.sm_track_id
        AND launch.warp = warp.warp
        AND launch.ts <= slice.ts
        AND launch.ts + launch.dur >= slice.ts + slice.dur
      ORDER BY
        launch.ts DESC
      LIMIT 1
    )
  ) AS block,
  warp.warp,
  warp.role
FROM slice
JOIN megatrace_warp_track AS warp USING (track_id)
WHERE
  slice.category IS NOT 'warp';

-- An arrow to a wait: from the publish that ended it, or from the prefetch that it is the
-- first use of. The viewer turns an arrow around where the wait began first, so which end
-- is which is told by the category.
CREATE OR REPLACE PERFETTO VIEW megatrace_edges (
  -- The publish or prefetch.
  producer_id JOINID(slice.id),
  -- The wait.
  wait_id JOINID(slice.id)
) AS
SELECT
  iif(into_.category GLOB 'stall.*', from_.id, into_.id) AS producer_id,
  iif(into_.category GLOB 'stall.*', into_.id, from_.id) AS wait_id
FROM flow
JOIN slice AS from_
  ON flow.slice_out = from_.id
JOIN slice AS into_
  ON flow.slice_in = into_.id
WHERE
  from_.category GLOB 'stall.*' OR into_.category GLOB 'stall.*';
