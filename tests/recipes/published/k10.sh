# Clients
curl http://localhost:8000/v1/models ; curl http://localhost:8000/v1/chat/completions -d '{"model":"m","messages":[{"role":"user","content":"1+1=?"}]}'
