-- Every sample that lives has the unit of its kind, and a value that a person can have.
select
    samples.sample_id,
    samples.data_type,
    samples.value,
    samples.unit
from {{ ref('stg_health__samples') }} as samples
inner join {{ ref('health__data_types') }} as kinds
    on samples.data_type = kinds.data_type
where
    samples.unit <> kinds.unit
    or samples.value not between kinds.minimum and kinds.maximum
