alter table instances
    add column restart_epoch int -- (api) its user asks that this start ends and another one begins
