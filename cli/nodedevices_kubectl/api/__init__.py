"""The API server: whose kubeconfig, which credentials, requests, pages and watches.

Not the official client: it takes longer to load than any command here may take to start, and models what it reads.
What is here reads kubeconfig files as kubectl does (several of them, client certificates, tokens, exec plugins,
proxies) and exchanges JSON over the standard library's http.client, every call bounded in time.
"""
