"""One request to a model: received, admitted, sent to one replica, answered."""
