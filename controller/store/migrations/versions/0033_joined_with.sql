-- So that a join whose answer was lost can be repeated with the same token. Null: joined under an earlier version.
alter table workers add column joined_with uuid  -- (hub) at the join; of a token that may be gone by now
