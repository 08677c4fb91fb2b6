{# What on_schema_change needs of Iceberg, which can drop and widen columns; the adapter refuses. #}
{% macro spark__alter_relation_add_remove_columns(relation, add_columns, remove_columns) %}
    {% if add_columns %}
        {% set added = [] %}
        {% for column in add_columns %}
            {% do added.append(column.quoted ~ ' ' ~ column.data_type) %}
        {% endfor %}
        {% do run_query('alter table ' ~ relation ~ ' add columns (' ~ added | join(', ') ~ ')') %}
    {% endif %}
    {% if remove_columns %}
        {% do iceberg._refuse_partition_columns(relation, remove_columns) %}
        {% do run_query(
            'alter table ' ~ relation ~ ' drop columns ('
            ~ remove_columns | map(attribute='quoted') | join(', ') ~ ')'
        ) %}
    {% endif %}
{% endmacro %}

{% macro _refuse_partition_columns(relation, columns) %}
    {% for part in iceberg.iceberg_partitioning(relation) %}
        {% for column in columns if modules.re.search('\\b' ~ column.name ~ '\\b', part) %}
            {{ exceptions.raise_compiler_error(
                'model ' ~ model.name ~ ' no longer has column ' ~ column.name ~ ', which ' ~ relation
                ~ ' is partitioned by (' ~ part ~ '). Change partition_by and run: '
                ~ iceberg._rebuild_command()
            ) }}
        {% endfor %}
    {% endfor %}
{% endmacro %}

{# A narrower type fits into the column that is there; any other change but widening is refused. #}
{% macro spark__alter_column_type(relation, column_name, new_column_type) %}
    {% set columns = adapter.get_columns_in_relation(relation) %}
    {% set present = (columns | selectattr('name', 'equalto', column_name) | first).data_type %}
    {% if iceberg.is_wider_type(new_column_type, present) %}
        {% do run_query(
            'alter table ' ~ relation ~ ' alter column ' ~ adapter.quote(column_name) ~ ' type '
            ~ new_column_type
        ) %}
    {% elif not iceberg.is_wider_type(present, new_column_type) %}
        {{ exceptions.raise_compiler_error(
            'model ' ~ model.name ~ ' has column ' ~ column_name ~ ' as ' ~ new_column_type ~ ', and '
            ~ relation ~ ' as ' ~ present ~ '. Iceberg widens types only (int to bigint, float to '
            ~ 'double, more digits for a decimal). Cast it in the model, or run: '
            ~ iceberg._rebuild_command()
        ) }}
    {% endif %}
{% endmacro %}

{% macro is_wider_type(wide, narrow) %}
    {% set decimal = 'decimal[(]([0-9]+), *([0-9]+)[)]' %}
    {% set wider, narrower = modules.re.match(decimal, wide), modules.re.match(decimal, narrow) %}
    {% if wider and narrower %}
        {{ return(
            wider[2] == narrower[2] and wider[1] | int > narrower[1] | int
        ) }}
    {% endif %}
    {{ return((narrow, wide) in [('int', 'bigint'), ('float', 'double')]) }}
{% endmacro %}

{% macro _rebuild_command() %}
    {{ return('dbt run --full-refresh --select ' ~ model.name) }}
{% endmacro %}

{# What a table is partitioned by, as in `partitioned by (...)`; empty when it is not. #}
{% macro iceberg_partitioning(relation) %}
    {% set parts, section = [], [''] %}
    {% for row in run_query('describe table ' ~ relation) %}
        {% if row[0].startswith('# ') %}
            {% do section.append(row[0]) if row[0] != '# col_name' %}
        {% elif row[0] and section[-1] == '# Partitioning' %}
            {% do parts.append(row[1]) %}
        {% elif row[0] and section[-1] == '# Partition Information' %}
            {% do parts.append(row[0]) %}  {# columns as they are, without a transform #}
        {% endif %}
    {% endfor %}
    {{ return(parts) }}
{% endmacro %}
